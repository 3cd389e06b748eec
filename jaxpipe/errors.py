"""The one error that is the user's to mend, not ours."""


class InputError(ValueError):
    """What was asked for cannot be done: the message holds the rule, the values found and the remedy.

    The command prints the message and exits with 2; every other exception keeps its traceback.
    """
