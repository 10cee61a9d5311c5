"""``python -m benchmarks``: the speed of this machine's CPU, see `benchmarks/bench.py`."""

from benchmarks.bench import main

if __name__ == "__main__":
    main()
