"""Parts of models that the experiments share, quick on a GPU."""
