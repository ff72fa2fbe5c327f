"""What Penstock's own tests stand on, and no user needs: it is in no wheel."""
