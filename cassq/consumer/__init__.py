"""What a popper does: it finds messages, claims them, hands them out, and settles them."""
