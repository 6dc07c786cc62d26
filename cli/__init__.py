"""The command line: ``ggfw VERB``. One module per verb or family of verbs; nothing else imports them."""
