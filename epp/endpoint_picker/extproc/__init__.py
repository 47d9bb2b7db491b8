"""What requests and responses mean to the picker: its side of the ext-proc protocol."""
