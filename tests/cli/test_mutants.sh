#!/bin/bash
# Seeded mutations of the transaction and the schedule: each must make the simulation fail.
exec tests/mutants/run.sh
