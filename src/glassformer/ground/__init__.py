"""The ground: errors, argument checks, files, locks and the vocabulary of sites. Needed everywhere; needs nothing."""
