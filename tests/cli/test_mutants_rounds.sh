#!/bin/bash
# Seeded mutations of the rounds that carry experts over NCCL: each must make the tests on the fake fail.
exec tests/mutants/rounds.sh
