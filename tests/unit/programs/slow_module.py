"""A module whose import takes two seconds."""

import sys
import time

sys.stdout.write("import begins\n")
for _ in range(200):
    time.sleep(0.01)
sys.stdout.write("import ends\n")
