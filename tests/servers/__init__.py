"""Our lanes against servers that others wrote, on loopback: `make test-servers` installs and runs them.

That our client and our own fake agree proves little: whoever misread a provider misread it in both.
"""
