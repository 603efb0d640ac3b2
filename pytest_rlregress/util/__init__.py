"""What several packages need and is about none of them."""
