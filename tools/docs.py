"""Write the generated pages of docs/: ``python -m tools.docs``, run from the repository."""

from fedrecall.papers import measured, page

if __name__ == "__main__":
    page.main()
    measured.main()
