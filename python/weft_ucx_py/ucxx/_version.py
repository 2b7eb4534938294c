"""Versions as programs ask for them: that of UCXX whose interface this is, and no commit, since it is none of UCXX's."""

__version__ = "0.52.0"
__git_commit__ = ""
