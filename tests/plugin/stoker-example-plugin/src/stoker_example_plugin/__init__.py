"""An example of a package that adds a place, a store, a recipe, a row format and an objective to Stoker."""
