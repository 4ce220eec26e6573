"""``openrlhf-rpo data``: questions and answers from anywhere, as a file that training takes."""
