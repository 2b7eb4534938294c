"""Elements on other machines: bridges between `weft run --on ENGINE` and an engine that has machines.

The launcher starts a bridge as a child and says by lines what to start; docs/design/launcher.md has the lines. `dask` is the
bridge to a Dask cluster, `reach` how it gets there, `cluster` what it does there, `worker` its part on a worker of that
cluster; `openwhisk` is the bridge to an OpenWhisk, `openwhisk_inside` its part in a container. Nothing here is for programs
to import.
"""
