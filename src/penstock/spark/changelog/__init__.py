"""What `to = "changelog"` is made of: entries as files, and what says which files count."""
