"""Reports of runs: a page with figures and an explorer of the clusters, and figures for papers."""
