"""What a bisect says.

``progress``   while it goes on
``answer``     what was found: its parts
``rendering``  as text, Markdown and JSON
"""
