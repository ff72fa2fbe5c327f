from bench.spark_read.run import main

if __name__ == "__main__":
    main()
