"""A second model beside the one that is trained: what it adds to a plan."""
