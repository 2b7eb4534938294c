"""python -m disagg.serve: an action runtime for OpenWhisk. `weft element serve` runs it.

    web.py          requests and answers, within bounds
    routes.py       which request means what
    runtime.py      the action: loaded once, run again and again, one activation at a time
    child.py        the process that runs its code, seen from here
    worker.py       the same process, seen from within
    code.py         what /init brings: source, a zip, a memory element
    head.py         the YAML at the head of elements
    memory.py       an activation of a memory element
    output.py       what the action prints, and the end of an activation in it

docs/design/elements.md says why it is like that.
"""
