"""How fast it is on this machine, against the limit of the machine and against what one would usually write."""
