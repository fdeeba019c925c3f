module hearth

go 1.27.3
