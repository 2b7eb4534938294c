"""Versions as programs ask for them: that of UCX-Py whose interface this is, and no commit, since it is none of UCX-Py's."""

__version__ = "0.45.0"
__git_commit__ = ""
