module github.com/hearth-ai/hearth

go 1.27.3
