// Package corpus writes logs for forensics: the public incident rebuilt from a
// seed, and small logs that each break one rule. They look as pdgate would have
// recorded them of a cluster whose guards are off: what the engines did, with the
// pages that they did it in.
package corpus
