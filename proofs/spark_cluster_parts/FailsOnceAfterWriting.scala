package proofs

import java.io.{File, IOException}

import org.apache.hadoop.mapreduce.TaskAttemptContext
import org.apache.spark.internal.io.FileCommitProtocol.TaskCommitMessage
import org.apache.spark.internal.io.FileNameSpec
import org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol

/** Spark's own way to write files, with tasks that fail after they have written.
  *
  * A file `<folder>/<name>` means: the next task that has written into a folder `<name>`, and whose
  * output is committed, shall fail. It becomes `<name>.failed` as that task fails; so it is one.
  */
class FailsOnceAfterWriting(job: String, output: String, dynamicPartitionOverwrite: Boolean)
    extends SQLHadoopMapReduceCommitProtocol(job, output, dynamicPartitionOverwrite) {

  private var files = 0

  override def newTaskTempFile(
      task: TaskAttemptContext, folder: Option[String], name: FileNameSpec): String = {
    files += 1
    super.newTaskTempFile(task, folder, name)
  }

  override def commitTask(task: TaskAttemptContext): TaskCommitMessage = {
    val message = super.commitTask(task)
    if (files > 0) failIfWanted(new File(task.getConfiguration.get("sparq.proof.failures")))
    message
  }

  private def failIfWanted(folder: File): Unit = {
    val wanted = Option(folder.listFiles).toSeq.flatten.filterNot(_.getName.endsWith(".failed"))
    for (file <- wanted if s"$output/".contains(s"/${file.getName}/"))
      if (file.renameTo(new File(folder, s"${file.getName}.failed")))
        throw new IOException(s"this task fails once, after it has written into $output")
  }
}
