module hearth

go 1.27.3

require github.com/klauspost/compress v1.20.4
