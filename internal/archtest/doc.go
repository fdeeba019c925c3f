// Package archtest holds the rules about the shape of the code as tests: which package may import which and why not
// others, who may use cgo, child processes and the environment, how long files and functions may be, and that every
// package explains itself. There is nothing in it but tests and the tables they read; to change a rule, change its table
// in the same commit.
package archtest
