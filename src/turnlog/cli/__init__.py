"""The command line: `turnlog [--store TARGET] [--json] COMMAND`.

`main` holds the group and the one place where errors become exit codes; the other modules hold a group of
commands each. Modules that cost time to load are imported inside the commands that need them, so that
`turnlog --help` is quick.
"""
