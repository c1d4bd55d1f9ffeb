"""What each member of a kind is: objectives, engines, storages, families. Words, rules and numbers, without torch."""
