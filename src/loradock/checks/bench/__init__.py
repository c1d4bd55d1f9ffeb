"""How fast the machine is, against what is known of its parts."""
