"""`python -m fedrecall` is the command `fedrecall`."""

from fedrecall.cli import main

if __name__ == "__main__":
    main()
