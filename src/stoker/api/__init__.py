"""The doors of `import stoker`, and the functions the command line is made of. Prints nothing. Changes with the API."""
