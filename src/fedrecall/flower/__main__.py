"""Print the folder of the Flower app, for `flwr run "$(python -m fedrecall.flower)"`."""

import sys

from fedrecall.flower import APP

sys.stdout.write(f"{APP}\n")
