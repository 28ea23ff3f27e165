"""The command line in this process, and what makes a run of a language model small."""

from typer.testing import CliRunner

from coterie_lab.cli import app

SMALL = [
    "--hidden=16", "--embedding=16", "--sequences=8", "--length=7", "--epochs=1", "--learning-rate=0.3",
    "--device=cpu", "--head-option=own_words=8",
]  # fmt: skip


def coterie(*arguments, stdin=None):
    """Runs a command in this process; what its user could have caused is an error that `main` prints as one line."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        assert isinstance(done.exception, ValueError | OSError), done.exception
        assert "\n" not in str(done.exception)
    return done
