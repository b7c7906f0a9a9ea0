"""`make load`: hundreds of sandboxes on the whole stack, while parts of it die, roll and restart."""
