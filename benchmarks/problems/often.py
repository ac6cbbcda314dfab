from cluster import report


def next_line(self, now, step, usual=report.Report._next_line):
    """A line, and with it a test of the center variable, after each call."""
    usual(self, now, step)
    self.due = step + 1


report.Report._next_line = next_line
