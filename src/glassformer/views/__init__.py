"""What can be seen: for each view its dataclasses and the page that draws them. How a view is computed is in `observe`."""
