"""`python -m meanteacher`: the command line where its script is not on the path, as under torchrun."""

from meanteacher.cli import main

if __name__ == "__main__":
    main()
