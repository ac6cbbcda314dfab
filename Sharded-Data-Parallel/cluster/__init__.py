"""What a distributed script needs around its scheme; in a copy, keep it as it is.

README.md of Distributed-Setup has a map of the modules: what each is for.
"""
