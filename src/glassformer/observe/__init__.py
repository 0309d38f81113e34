"""What happened, as plain data: the journey of a prompt. `show/` draws it."""
