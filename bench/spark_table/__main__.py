from bench.spark_table.run import main

if __name__ == "__main__":
    main()
