"""Updates that no step of an optimizer announces."""
