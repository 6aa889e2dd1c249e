"""An example of a package that adds a place, a store, a recipe and a row format to Stoker."""
