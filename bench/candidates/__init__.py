"""The ways to bring gradients together: through a store, and by what a user could do instead."""
