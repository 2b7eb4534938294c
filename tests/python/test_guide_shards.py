"""What docs/guide/shards.md shows in Python does what it says."""
from guideside import programs, said


def test_the_program_runs_and_says_nothing_else(child):
    [program] = programs("shards.md")
    assert said(child, program) == (0, "800\n")
