// nsqjs at work: Writer and Reader, as its own documentation has it.
// The job and what is said about it: see job.py beside this file.
const { Reader, Writer } = require('nsqjs')

const job = JSON.parse(process.argv[2])
const started = Date.now()

function say (event, facts) {
  console.log(JSON.stringify({ event, at_ms: Date.now() - started, ...facts }))
}

function fail (error) {
  say('error', { text: String(error) })
}

function published (send) {
  return new Promise((resolve) => send((error) => {
    if (error) fail(error)
    resolve()
  }))
}

async function publish (writer) {
  for (const body of job.publish) {
    await published((done) => writer.publish(job.topic, body, done))
  }
  for (const body of job.defer) {
    await published((done) => writer.deferPublish(job.topic, [body], job.defer_ms, done))
  }
  if (job.multi_publish.length > 0) {
    await published((done) => writer.publish(job.topic, job.multi_publish, done))
  }
  say('published', {})
}

function handle (message) {
  say('received', { body: message.body.toString(), attempts: message.attempts })
  const plan = message.attempts === 1 ? job.plan : 'finish'
  if (plan === 'finish') message.finish()
  else if (plan === 'requeue') message.requeue(job.requeue_ms, false)
  else if (plan === 'touch') {
    const apart = Math.floor(job.msg_timeout_ms / 3)
    hold(message, Math.floor(job.hold_ms / apart), apart)
  }
}

function hold (message, times, apart) {
  if (times === 0) return message.finish()
  message.touch()
  setTimeout(() => hold(message, times - 1, apart), apart)
}

const [host, port] = job.nsqd.split(':')
const writer = new Writer(host, Number(port))
writer.on('error', fail)
writer.on('ready', async () => {
  await publish(writer)
  const reader = new Reader(job.topic, job.channel, {
    lookupdHTTPAddresses: job.lookupd,
    lookupdPollInterval: 1,
    maxInFlight: 10,
    messageTimeout: job.msg_timeout_ms
  })
  reader.on('error', fail)
  reader.on('message', handle)
  reader.connect()
})
writer.connect()
