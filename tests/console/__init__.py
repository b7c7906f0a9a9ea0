"""The console's own logic, apart from the document, and the page in a real browser."""
