"""``python -m webop`` is the command line."""

from webop.cli import main

if __name__ == "__main__":
    main(prog_name="webop")
